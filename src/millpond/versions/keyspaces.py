"""The keyspaces of versions: every row that repositories have in a space, drawn in `docs/format/versions.md`."""

from millpond.kernel.keyspace import REGISTRY, Scope

__all__ = (
    "BRANCH",
    "CLEARED",
    "COLLECTION",
    "COMMIT",
    "COPYING",
    "DELETED",
    "DROPPED",
    "IMPORT",
    "LOCATION",
    "REPOSITORY",
    "SETTING",
    "SHARED",
    "SIGNING_KEY",
    "STAGED",
    "TAG",
    "TURN",
    "UPLOAD",
)

# A clone copies maps; the repositories of a folder stay with the folder, as the objects in it do.
_FOLDER = Scope.FOLDER

REPOSITORY = REGISTRY.register(
    "versions", "repository", ("repository",), _FOLDER, "JSON",
    "a repository: its uid, namespace, default branch and metadata",
)  # fmt: skip
BRANCH = REGISTRY.register(
    "versions", "branch", ("repository uid", "branch"), _FOLDER, "JSON",
    "a branch: its head, staging token, sealed layers and compacted index",
)  # fmt: skip
TAG = REGISTRY.register(
    "versions", "tag", ("repository uid", "tag"), _FOLDER, "text", "the id of the commit that a tag names"
)  # fmt: skip
COMMIT = REGISTRY.register(
    "versions", "commit", ("repository uid", "commit id"), _FOLDER, "JSON", "a commit, named by its content"
)  # fmt: skip
SETTING = REGISTRY.register(
    "versions", "setting", ("repository uid", "setting"), _FOLDER, "JSON",
    "a setting of a repository: protected branches, retention, compaction",
)  # fmt: skip
STAGED = REGISTRY.register(
    "versions", "staged", ("token", "path"), _FOLDER, "entry or tombstone", "a staged entry, or its deletion"
)  # fmt: skip
CLEARED = REGISTRY.register(
    "versions", "cleared", ("token", "prefix"), _FOLDER, "nothing",
    "a range tombstone: it hides every path with this prefix in the layers below its token",
)  # fmt: skip
DROPPED = REGISTRY.register(
    "versions", "dropped", ("token",), _FOLDER, "nothing", "a token that no branch lists any more: its rows are to go"
)  # fmt: skip
DELETED = REGISTRY.register(
    "versions", "deleted", ("repository uid",), _FOLDER, "nothing", "a repository that was deleted: its rows are to go"
)  # fmt: skip
COLLECTION = REGISTRY.register(
    "versions", "collection", ("repository uid",), _FOLDER, "JSON",
    "the number of garbage collections of a repository, and until when one may delete",
)  # fmt: skip
COPYING = REGISTRY.register(
    "versions", "copying", (), _FOLDER, "JSON",
    "the number of copies that came into the pond, and until when one brings objects of repositories",
)  # fmt: skip
TURN = REGISTRY.register(
    "versions", "turn", ("repository uid", "branch"), _FOLDER, "JSON",
    "the process whose turn it is to move the head of a branch, and until when",
)  # fmt: skip
LOCATION = REGISTRY.register(
    "versions", "place", (), _FOLDER, "JSON",
    "the shared space that holds the repositories of the pond, and its uid; no row: the pond's own",
)  # fmt: skip
SHARED = REGISTRY.register(
    "versions", "shared", (), _FOLDER, "JSON", "of a shared space: its uid, and the place that `local://` names in it"
)  # fmt: skip
UPLOAD = REGISTRY.register(
    "versions", "upload", ("repository uid", "upload"), _FOLDER, "JSON",
    "a multipart upload that is not complete: its branch, path and address",
)  # fmt: skip
IMPORT = REGISTRY.register(
    "versions", "import", ("repository uid", "import"), _FOLDER, "JSON",
    "an import: its branch, progress and outcome, and until when its process is taken to live",
)  # fmt: skip
SIGNING_KEY = REGISTRY.register(
    "versions", "signing_key", ("key id",), _FOLDER, "JSON",
    "a key by which addresses and URLs are signed, and its time",
)  # fmt: skip
