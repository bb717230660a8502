"""Launches that outlive the program that made them: started here, and found again anywhere."""
