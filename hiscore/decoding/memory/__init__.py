"""Division of memory for decode before anything is allocated: the plan, and the pages of each pool."""
