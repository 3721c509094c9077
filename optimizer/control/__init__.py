"""What a fleet does over a day: forecast, headroom, plans and their rollout, and the planners it is compared with."""
