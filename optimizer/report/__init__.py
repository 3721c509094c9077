"""What is told about a recommendation: the words, the figures and the page that holds them."""
