"""A cluster that runs: the scheduler's decisions carried out by a daemon with a journal.

A job is a file in words (`files`); what happens is written before anything is done about it
(`journal`); ranks are started by an engine that knows them by a name, so that after a crash what
runs is found and nothing starts twice (`engine`); one thread owns all of it (`cluster`, `daemon`),
and people reach it through a socket of their own (`server`, `client`)."""
