"""Scoring shards with Ray Data, one task per shard."""

import logging
import pickle
from collections.abc import Callable, Generator
from dataclasses import asdict
from typing import Any

from hiscore_client.errors import HiscoreError
from hiscore_client.offline.job import Job
from hiscore_client.offline.ray_cluster import connected
from hiscore_client.offline.shards import Shard
from hiscore_client.offline.worker import ShardResult, score_shard, to_job_error

# Each block of Ray Data is one task; with more shards than this, tasks get several.
MAX_BLOCKS = 10_000


def score_with_ray(address: str | None) -> Callable[[Job, list[Shard]], Generator[ShardResult, None, None]]:
    """Return a function that scores shards on a Ray cluster; without an address, on a private one."""

    def score(job: Job, shards: list[Shard]) -> Generator[ShardResult, None, None]:
        if not shards:
            return
        with connected(address, job.options.workers):
            import ray.data

            for noisy in ("ray.data", "ray"):
                logging.getLogger(noisy).setLevel(logging.ERROR)
            ray.data.DataContext.get_current().enable_progress_bars = False
            rows = ray.data.from_items(
                [asdict(shard) for shard in shards], override_num_blocks=min(len(shards), MAX_BLOCKS)
            )
            results = rows.map(
                _score_row,
                fn_kwargs={"job": job},
                compute=ray.data.TaskPoolStrategy(size=job.options.workers),
                num_cpus=1,
            )
            for row in results.iter_rows():
                outcome: ShardResult | HiscoreError = pickle.loads(row["outcome"])
                if isinstance(outcome, HiscoreError):
                    raise outcome
                yield outcome

    return score


def _score_row(row: dict[str, Any], job: Job) -> dict[str, bytes]:
    # An error is returned as a value: Ray would wrap an exception and log its traceback.
    outcome: ShardResult | HiscoreError
    try:
        outcome = score_shard(job, Shard(**row))
    except (HiscoreError, OSError) as error:
        outcome = to_job_error(error)
    return {"outcome": pickle.dumps(outcome)}
