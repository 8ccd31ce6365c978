"""Print the prompts that transformers makes of questions for a checkpoint with a decision_config.json.

Reads JSON from standard input: the `config`, a `state` and `questions` by name, as the System One API has them.
"""

import json
import sys
from dataclasses import asdict

from transformers.decision.template_utils import parse_questions
from transformers.models.jev.configuration_jev import JevConfig
from transformers.utils.chat_template_utils import _compile_jinja_template

given = json.load(sys.stdin)
decision = JevConfig.decision_config({"decision_config": given["config"]}, {})
template = _compile_jinja_template(decision.chat_template)
print(
    json.dumps(
        {
            question.name: [
                template.render(state=given["state"], question=asdict(question)),
                dict(zip(question.options, question.labels, strict=True)),
                decision.temperature[question.type],
            ]
            for question in parse_questions(given["questions"], decision)
        }
    )
)
