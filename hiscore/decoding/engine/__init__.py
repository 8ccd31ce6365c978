"""The engine: one thread that takes requests, schedules steps, launches them and reads their results."""
