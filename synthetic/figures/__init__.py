"""How figures look: tables of numbers before they are rounded, and charts as data before they are drawn."""
