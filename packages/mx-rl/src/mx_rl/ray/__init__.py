"""Learner and sampler as Ray actors, each in its own process."""

from mx_rl.ray.runtime import RayRuntime, child_environment
from mx_rl.ray.team import RayTeam, learner_spec, sampler_spec

__all__ = ["RayRuntime", "RayTeam", "child_environment", "learner_spec", "sampler_spec"]
