"""A model of a cluster: the speed of its workers, disturbances, and network links. No torch, no clock."""
