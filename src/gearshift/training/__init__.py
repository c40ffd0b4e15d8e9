"""Training without an engine: the plan, its progress, what one worker computes, evaluation."""
