"""How it is done in the world: driven resources and driving interfaces."""
