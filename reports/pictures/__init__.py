"""Pictures: each makes one statement, says it in its title, labels its lines directly, and has its data as CSV."""
