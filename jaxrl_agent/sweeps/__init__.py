"""Many runs as one study: methods compared over seeds."""
