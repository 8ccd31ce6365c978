"""Chat and completions: messages, tools, sampling and streams in OpenAI's wire format."""
