"""The annotator's page: a small web server at the site, for the browser of the person who labels."""
