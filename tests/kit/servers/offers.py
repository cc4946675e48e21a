# mypy: ignore-errors
"""Offers what a file says and writes down each start: `offers.py LEDGER OFFER`.

OFFER is JSON: `{"tools": {name: description}, "instructions": text, "prompts": [name], "resources": [uri]}`, read
at every start. LEDGER gets a line when the process begins. A call answers with its tool's name.
"""

import json
import os
import sys

from speak import answer, greeting, handle, lines, text

with open(sys.argv[1], "a") as ledger:
    ledger.write(f"{os.getpid()}\n")
with open(sys.argv[2]) as file:
    offer = json.load(file)

prompts = [{"name": name} for name in offer.get("prompts", [])]
resources = [{"uri": uri, "name": uri} for uri in offer.get("resources", [])]
for message in lines():
    method = message.get("method")
    if method == "initialize":
        greeted = greeting(message)
        greeted["capabilities"] |= {"prompts": {}} if prompts else {}
        greeted["capabilities"] |= {"resources": {}} if resources else {}
        answer(message, {**greeted, "instructions": offer.get("instructions", "")})
    elif method == "prompts/list":
        answer(message, {"prompts": prompts})
    elif method == "resources/list":
        answer(message, {"resources": resources})
    elif method == "resources/templates/list":
        answer(message, {"resourceTemplates": []})
    else:
        handle(message, offer["tools"], lambda name, arguments, request: text(name))
