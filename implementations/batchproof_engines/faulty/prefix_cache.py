"""Cached prefixes that hold other tokens than asked for, are incomplete, or belong to another request."""

from __future__ import annotations


# HAND BlocksKnownByTheirOwnTokens


# HAND EvictedPrefixIsStillFound


# HAND SharedBlocksGoWithTheFirst


# HAND OneTokenMoreThanIsCached


# HAND NothingLeftToFeed


# HAND PartOfABlockIsShared


# HAND HalfABlockIsPublished


# HAND CachedBlocksAreNeverGivenUp


# HAND HitsAreCountedAsRoom
