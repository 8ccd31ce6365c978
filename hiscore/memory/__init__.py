"""Memory planned in the open: what there is, who has claimed it, and what each part of a model needs."""
