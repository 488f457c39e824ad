"""Programming problems with public and hidden tests: where they come from, and how an agent works on them."""
