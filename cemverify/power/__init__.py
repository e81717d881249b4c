"""Detection power: implementations with one fault, how often they are detected, and false alarms on correct ones."""
