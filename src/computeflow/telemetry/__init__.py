"""What a run left behind, as measured ledgers. Start with `audit`."""
