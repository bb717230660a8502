"""Where torchrunx has its errors and its builders of log handlers."""
