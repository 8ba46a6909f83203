"""The pages on tasks, groups, rollouts, tokens, steps, tools, the bias ledger and the search, and their exports."""

from tandem.viewer.comparison import rollouts_page, versions_page
from tandem.viewer.exports import group_export, rollout_export, search_export, step_export
from tandem.viewer.group import group_page, tree_page
from tandem.viewer.images import image_file
from tandem.viewer.ledger import ledger_page
from tandem.viewer.notes import notes_page
from tandem.viewer.pages import POLL_LIST_S, POLL_SUM_S, Page
from tandem.viewer.rollout import rollout_page, text_page
from tandem.viewer.search import search_page
from tandem.viewer.steps import step_page, steps_page
from tandem.viewer.tasks import tasks_page
from tandem.viewer.tokens import tokens_page
from tandem.viewer.tools import tools_page

EPISODE_PAGES = (
    Page("/tasks", "tasks.html", tasks_page, "tasks", POLL_LIST_S),
    Page("/groups/{gid:path}/tree", "tree.html", tree_page, "tasks", POLL_LIST_S),
    Page("/groups/{gid:path}/export/{form}", "", group_export, "tasks"),
    Page("/groups/{gid:path}", "group.html", group_page, "tasks", POLL_LIST_S),
    Page("/rollouts/{record_id:path}/tokens", "tokens.html", tokens_page, "search"),
    Page("/rollouts/{record_id:path}/text", "", text_page, "search"),
    Page("/rollouts/{record_id:path}/export/{form}", "", rollout_export, "search"),
    Page("/rollouts/{record_id:path}", "rollout.html", rollout_page, "search", POLL_LIST_S),
    Page("/images/{sha256}", "", image_file, "search"),
    Page("/steps/{policy}/{step}/export/{form}", "", step_export, "steps"),
    Page("/steps/{policy}/{step}", "step.html", step_page, "steps", POLL_LIST_S),
    Page("/steps", "steps.html", steps_page, "steps", POLL_LIST_S),
    Page("/tools", "tools.html", tools_page, "tools", POLL_SUM_S),
    Page("/ledger", "ledger.html", ledger_page, "ledger", POLL_SUM_S),
    Page("/search/export/{form}", "", search_export, "search"),
    Page("/search", "search.html", search_page, "search"),
    Page("/notes", "notes.html", notes_page, "notes", POLL_LIST_S),
    Page("/compare", "two_rollouts.html", rollouts_page, "search"),
    Page("/versions", "two_versions.html", versions_page, "tasks"),
)
