"""From rows to stored tokens: split, template, tokens, fingerprint."""
