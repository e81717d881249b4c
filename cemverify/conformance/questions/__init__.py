"""What is asked: cases, where they are drawn from, how they are made smaller, and how they are saved."""
