"""The viewer: a run's database as web pages, read-only (`tandem view`). Its queries are `shared.store.views`."""
