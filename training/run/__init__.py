"""What every training run shares: its folder, options, exact state and the loop around model.fit."""
