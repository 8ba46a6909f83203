"""Protections of the recipes' tasks: what is held out, and what a walk shows."""

from tests.mutant_rows.mutant import Mutant

PIXELS = "tests/system/test_pixels_recipe.py"  # its tests of real rooms need GAMES_PYTHON, or .games

MUTANTS = (
    Mutant(
        "recipe pixels: rooms are held out by what the player has ahead",
        "assets/recipes/pixels/make.py",
        "if room.view() not in self.views:",
        "if True:",
        f"{PIXELS}::test_no_room_of_the_evaluation_is_trained_or_passed_in_the_warm_up",
    ),
    Mutant(
        "recipe pixels: no walk passes a room of the evaluation",
        "assets/recipes/pixels/make.py",
        "if room.view() in held_out:",
        "if False:",
        f"{PIXELS}::test_a_walk_through_a_room_of_the_evaluation_is_excluded",
    ),
    Mutant(
        "recipe pixels: the object stops a step ahead",
        "assets/recipes/pixels/rooms.py",
        "is_free = self.ahead != self.target and all(",
        "is_free = all(",
        f"{PIXELS}::test_the_object_and_the_walls_stop_a_step_ahead",
    ),
    Mutant(
        "recipe pixels: the warm-up's moves are noisy, so that reinforcement learning has something to learn",
        "assets/recipes/pixels/make.py",
        "rng.choice(MOVES if rng.random() < RANDOM else room.moves_nearer())",
        "rng.choice(room.moves_nearer())",
        f"{PIXELS}::test_a_share_of_the_warm_ups_moves_is_drawn_at_random",
    ),
)
