"""The search index of the notes."""

from haystack import indexes

from notes.models import Note


class NoteIndex(indexes.SearchIndex, indexes.Indexable):
    """Title and body."""

    text = indexes.CharField(document=True)
    title = indexes.CharField(model_attr="title")

    def get_model(self):
        """The indexed model."""
        return Note

    def prepare_text(self, note):
        """What is searched."""
        return f"{note.title} {note.body}"
