"""Words and text pieces of the built-in tasks; each of them is one token of the bundled tokenizer."""

FUNCTION_NAMES = "mix scale shift blend pick solve score rank grow trim merge apply update weigh reduce combine".split()

WORD_FIELDS = {
    "name": "Anna Ben Clara David Emma Felix Grace Hugo Iris Jonas Karen Leo Maria Noah Olga Peter".split(),
    "city": (
        "Athens Berlin Cairo Delhi Dublin Geneva Lima London Madrid Oslo Paris Prague Rome Seoul Tokyo Vienna".split()
    ),
    "color": "amber black blue brown green orange pink purple red silver white yellow".split(),
    "animal": "bear cat dog eagle fox goat horse lion mouse owl rabbit tiger wolf".split(),
    "food": "apple bread cheese honey lemon melon noodles pasta pizza rice salad soup".split(),
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "sport": "boxing chess cycling football golf hockey judo rowing rugby running skiing tennis".split(),
    "tool": "axe brush drill hammer knife ladder pliers rope saw shovel wrench".split(),
}

NUMBER_FIELDS = {"age": (10, 99), "floor": (1, 9), "room": (100, 999)}

_TEMPLATES = (
    "Write a Python function ", "add ", "subtract ", "multiply ", " to ", " from ", " by ", "if ", " is ",
    " is above ", " is below ", " return ", "return ", "def ", "):", "):\n    ", "\n    ", ":\n        return ",
    ", return ", ", add ", ", subtract ", ", multiply ", ", if ", " = ", " + ", " - ", " * ", " > ", " < ",
    ", ", ": ", "; ", "Add ", " and ", " column by column.", "Sum ", "Make JSON with ", " from: ", '{"', '": "', '", "',
    '": ', ', "', '"}', " to each: ", "Start at ", ", then add: ",
)  # fmt: skip

PIECES: tuple[str, ...] = tuple(
    dict.fromkeys([*_TEMPLATES, *FUNCTION_NAMES, *WORD_FIELDS, *NUMBER_FIELDS, *sum(WORD_FIELDS.values(), [])])
)
