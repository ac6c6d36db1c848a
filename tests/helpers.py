"""Cases and comparisons that several test modules share."""
