# The probe of an engine: it answers a request with its key.
exec python3 -c 'import os, urllib.request as u
u.urlopen(u.Request("http://127.0.0.1:30000/model_info", headers={"Authorization": "Bearer " + os.environ["ENGINE_API_KEY"]}), timeout=20)'
