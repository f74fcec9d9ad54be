"""Labelling at a site: the store of questions and answers, the annotators' page, and exchange with other tools."""
