"""`tandem` with every command, for programs that call more than one of them."""

from tandem.commands.application import EVERY, application

app = application(EVERY)
