"""What a person gets to see: terminal text, Markdown and HTML, all rendered from the one record that JSON holds."""
