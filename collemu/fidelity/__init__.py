"""How far the times of models are from tables that others measured."""
