"""How decode divides memory before anything is allocated: the plan, and the pages of each pool."""
