"""Questions: cases, how they are drawn, how they shrink, and how they are saved."""
