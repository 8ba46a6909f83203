"""Units of quantities: what they measure, and how much of it one is, exactly. Percent and degrees are numbers, too."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

F = Fraction
Dimension = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """`dimension`: such as (("length", 1), ("time", -1)). `size`: in the base unit of its dimension."""

    dimension: Dimension
    size: Fraction

    def times(self, other: "Unit", sign: int) -> "Unit":
        powers = dict(self.dimension)
        for name, power in other.dimension:
            powers[name] = powers.get(name, 0) + sign * power
        return Unit(tuple(sorted((n, p) for n, p in powers.items() if p)), self.size * other.size**sign)

    def power(self, exponent: int) -> "Unit":
        return Unit(tuple((n, p * exponent) for n, p in self.dimension), self.size**exponent)


ONE = Unit((), F(1))


def _units(dimension: str, sizes: Mapping[str, Fraction | int], power: int = 1) -> dict[str, Unit]:
    return {name: Unit(((dimension, power),), F(size)) for names, size in sizes.items() for name in names.split()}


INCH, POUND, GALLON = F(254, 10_000), F(45_359_237, 100_000_000), F(3_785_411_784, 10**12)
UNITS: dict[str, Unit] = {
    **_units("length", {
        "m meter meters metre metres": 1, "cm centimeter centimeters centimetre centimetres": F(1, 100),
        "mm millimeter millimeters millimetre millimetres": F(1, 1000), "km kilometer kilometers kilometre kilometres kms": 1000,
        "dm decimeter decimeters": F(1, 10), "micrometers micrometer micron microns": F(1, 10**6),
        "nm nanometer nanometers": F(1, 10**9),
        "in inch inches": INCH, "ft foot feet": 12 * INCH, "yd yard yards yds": 36 * INCH, "mi mile miles": 63360 * INCH,
    }),
    **_units("mass", {
        "g gram grams gm": 1, "kg kilogram kilograms kgs kilo kilos": 1000, "mg milligram milligrams": F(1, 1000),
        "lb lbs pound pounds": 1000 * POUND, "oz ounce ounces": 1000 * POUND / 16, "tonne tonnes": 10**6,
    }),
    **_units("time", {
        "s sec secs second seconds": 1, "ms millisecond milliseconds": F(1, 1000), "min mins minute minutes": 60,
        "h hr hrs hour hours": 3600, "day days": 86400, "week weeks wk wks": 604800,
    }),
    **_units("months", {"month months": 1, "year years yr yrs": 12, "decade decades": 120, "century centuries": 1200}),
    **_units("length", {
        "L l liter liters litre litres": F(1, 1000), "mL ml milliliter milliliters millilitre millilitres cc": F(1, 10**6),
        "gallon gallons gal": GALLON, "quart quarts qt": GALLON / 4, "pint pints pt": GALLON / 8,
    }, 3),
    **_units("length", {"acre acres": 4047, "hectare hectares ha": 10**4}, 2),
    **_units("dollars", {"\\dollar dollar dollars USD usd bucks": 1, "cent cents ¢": F(1, 100)}),
    **_units("euros", {"\\euro euro euros EUR eur": 1}),
    **_units("pounds", {"\\pound GBP gbp": 1, "pence": F(1, 100)}),
    **_units("yen", {"\\yen yen JPY yuan RMB CNY": 1}),
    **_units("rupees", {"\\rupee rupee rupees Rs INR": 1}),
    **_units("angle", {"degree degrees deg": 1, "radian radians rad": 0}),
    **_units("celsius", {"Celsius celsius degC": 1}),
    **_units("fahrenheit", {"Fahrenheit fahrenheit degF": 1}),
    **_units("temperature", {"K Kelvin kelvin kelvins": 1}),
    **_units("energy", {"J joule joules": 1, "kJ kilojoule kilojoules": 1000}),
    **_units("energy", {"cal calorie calories": F(4184, 1000), "kcal": 4184}),
    **_units("power", {"W watt watts": 1, "kW kilowatt kilowatts": 1000}),
    **_units("force", {"N newton newtons": 1, "kN": 1000}),
    **_units("resistance", {"\\Omega ohm ohms": 1}),
    **_units("voltage", {"V volt volts": 1}),
    **_units("current", {"A ampere amperes amp amps": 1, "mA": F(1, 1000)}),
    **_units("frequency", {"Hz hertz": 1, "kHz": 1000, "MHz": 10**6}),
    **_units("pressure", {"Pa pascal pascals": 1, "kPa": 1000}),
    **_units("amount", {"mol mole moles mols": 1}),
    **_units("data", {"byte bytes": 1, "KB kB": 1000, "MB": 10**6, "GB": 10**9}),
    **_units("percent", {"% percent percentage": 1, "percentage-points": 1}),
    "kmh": Unit((("length", 1), ("time", -1)), F(1000, 3600)), "kph": Unit((("length", 1), ("time", -1)), F(1000, 3600)),
    "mph": Unit((("length", 1), ("time", -1)), 63360 * INCH / 3600),
}  # fmt: skip
UNITS["radian"] = UNITS["radians"] = UNITS["rad"] = Unit((("radians", 1),), F(1))
CURRENCIES = ("\\dollar", "\\euro", "\\pound", "\\yen", "\\rupee")
LETTERS = frozenset(name for name in UNITS if len(name) == 1 and name.isalpha())  # also variables
MONEY = frozenset({"dollars", "euros", "pounds", "yen", "rupees"})


def unit_of(words: tuple[str, ...]) -> Unit | None:
    """Of the words behind a number: `km / h`, `square meters`, `meters per second`, `cm ^ 2`. None: no unit."""
    product, sign, power, at = ONE, 1, 1, 0
    is_known = False
    while at < len(words):
        word = words[at]
        at += 1
        if word in ("per", "/", "a", "an", "each"):
            if not is_known:
                return None
            sign = -1
            continue
        if word in ("*", "\\cdot", "·", "-"):
            continue
        if word in ("square", "sq", "cubic"):
            power = 3 if word == "cubic" else 2
            continue
        unit = UNITS.get(word) or UNITS.get(word.lower() if len(word) > 2 else word)
        if unit is None:
            return None
        if at < len(words) and words[at] in ("squared", "cubed"):
            power, at = 2 + (words[at] == "cubed"), at + 1
        if at + 1 < len(words) and words[at] == "^" and words[at + 1].lstrip("-").isdigit():
            exponent = int(words[at + 1])
            if abs(exponent) > 9:
                return None
            power, at = exponent, at + 2
        product, is_known = product.times(unit.power(power), sign), True
        power = 1
    return product if is_known and power == 1 else None
