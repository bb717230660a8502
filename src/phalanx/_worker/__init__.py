"""The processes that run the user's code: zygote, bootstrap, outcome. No agent, no launcher."""
