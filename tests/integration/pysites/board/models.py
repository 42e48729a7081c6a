"""Its tables, as SQLAlchemy knows them."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAME = "board"
"""What the database is called in the application's configuration."""


class Base(DeclarativeBase):
    """All tables."""


class Note(Base):
    """What somebody pinned."""

    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    body: Mapped[str]


class Session(Base):
    """Who is logged in: the cookie holds nothing but the token."""

    __tablename__ = "sessions"
    token: Mapped[str] = mapped_column(primary_key=True)
    person: Mapped[str]


class Job(Base):
    """What was done after an answer."""

    __tablename__ = "jobs"
    id: Mapped[int] = mapped_column(primary_key=True)
    word: Mapped[str]


class Setting(Base):
    """One value."""

    __tablename__ = "settings"
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]


class Visit(Base):
    """Kept in a database of its own, where the site has one."""

    __tablename__ = "visits"
    id: Mapped[int] = mapped_column(primary_key=True)
    path: Mapped[str]
