"""Words: those of a sentence that change a number, those that do not, and those that look like products of variables."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


DENIED = _words(
    "or and not no nor minus negative plus times over half quarter third double twice triple hundred hundreds thousand "
    "thousands million millions billion billions trillion dozen between to from less more fewer than least most below above "
    "under except unless if wrong incorrect false cannot impossible maybe perhaps squared cubed factorial root mod modulo "
    "base point divided multiplied but while instead either both through until versus vs remainder infinite never none "
    "neither without up down or's isn't aren't wasn't doesn't can't undefined diverges divergent greater smaller larger "
    "increase decrease off power sum difference ratio"
)
"""A sentence with one of these has no number to take."""
PLACES = _words("above below from to up down under")
EMPTY = _words(
    "the a an is are was were be of in total totally altogether overall all answer final result value here there which this "
    "that it its so thus therefore hence each every per exactly approximately about around roughly nearly only just we get "
    "have has i you they he she will would can for at on by as equal equals our my his her their unit units day with number"
)
ENGLISH = _words(
    "is it in of to an at by no so we he or on my up us if as do go me be am per cup day and are the for not all any can "
    "had was one our out has two who its let put sum ten six yes men car bus dog cat pen egg box bag kid set way"
)
PRODUCTS = _words("xy yz xz xyz ab bc ac abc ad cd bd ax ay bx cx dx dy dt mn pq rs st uv nx kx AB BC AC CD")
GREEK = _words(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi "
    "varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar"
)
