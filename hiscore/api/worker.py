"""What each of the API's processes runs."""

import logging

from starlette.applications import Starlette

from hiscore.api.app import create_app
from hiscore.api.protocol import LimitedProtocol
from hiscore.logs import LogFormat, configure
from hiscore.settings import ApiProcessSettings


def app() -> Starlette:
    """The application of a process that uvicorn has just started."""
    settings = ApiProcessSettings()  # type: ignore[call-arg]
    configure_api(settings.log_format)
    LimitedProtocol.header_timeout_s = settings.header_timeout_s
    return create_app(settings)


def configure_api(log_format: LogFormat) -> None:
    """Log as the models do."""
    configure(log_format, "hiscore %(levelname)s %(name)s: %(message)s", model="api")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
