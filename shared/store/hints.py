"""What to do about a server that cannot be reached, from what the driver says. Above all TLS, of which a server says nothing: it
closes a connection without TLS, or without the client's certificate that it requires.
"""

import re

NOT_RUNNING = "Is it running? `tandem mongod` starts one on this machine."
_USES_TLS = re.compile(r"^mongodb\+srv:|[?&](?:tls|ssl)=true\b", re.IGNORECASE)
_HAS_CERTIFICATE = re.compile(r"[?&]tlsCertificateKeyFile=", re.IGNORECASE)
_CLOSED = ("connection closed", "connection is already closed", "Connection reset", "EOF occurred", "alert")
_HINTS = {  # {what the driver says of a connection with TLS: the remedy}
    "CERTIFICATE_VERIFY_FAILED] certificate verify failed: Hostname mismatch": "The server's certificate is for another name: "
    "expected a db_connection_string with a HOST that the certificate names.",
    "CERTIFICATE_VERIFY_FAILED] certificate verify failed: IP address mismatch": "The server's certificate is for another "
    "address: expected a db_connection_string with a HOST that the certificate names.",
    "CERTIFICATE_VERIFY_FAILED": "The authority that signed the server's certificate is unknown here: expected "
    "tlsCAFile=FILE in the db_connection_string, with its certificate.",
    **dict.fromkeys(
        ("WRONG_VERSION_NUMBER", "SSL handshake failed"),
        "The server uses no TLS: expected a db_connection_string without tls=true.",
    ),
}


def hint(error: str, connection_string: str) -> str:
    """The remedy, in a sentence or two. `error`: the driver's message."""
    uses_tls = _USES_TLS.search(connection_string) is not None
    known = next((remedy for words, remedy in _HINTS.items() if words in error), None)
    if known is not None:
        return known
    if not any(words in error for words in _CLOSED):
        return NOT_RUNNING
    if not uses_tls:
        return (
            "The server closed the connection: if it requires TLS, expected tls=true in the db_connection_string, "
            "and tlsCAFile=FILE for an authority of your own."
        )
    if not _HAS_CERTIFICATE.search(connection_string):
        return (
            "The server closed the connection after the handshake of TLS: if it requires a client's certificate, expected "
            "tlsCertificateKeyFile=FILE in the db_connection_string, with certificate and key."
        )
    return (
        "The server closed the connection after the handshake of TLS: expected a client's certificate that it accepts, "
        "and a server without TLS only without tls=true."
    )
