"""What every other room of ops stands on: checks of arguments, masks, positions, activations, replicas."""
