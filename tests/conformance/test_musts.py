"""The contract's MUST sentences and the suite's cases: neither has what the other lacks."""

from hal.core.description import Feature
from hal_conformance import musts
from hal_conformance.catalog import GROUPS, catalog


def test_every_sentence_with_a_must_has_an_id():
    assert [s for s in musts.sentences() if not musts.ids_of(s)] == []


def test_there_are_many_sentences():
    assert len(musts.sentences()) > 80
    assert len(musts.ids()) > 80


def test_every_id_of_the_contract_has_a_case():
    proved = {name for case in catalog() for name in case.musts}
    assert sorted(musts.ids() - proved) == []


def test_every_id_that_a_case_names_is_in_the_contract():
    named = {(case.id, name) for case in catalog() for name in case.musts}
    assert sorted(pair for pair in named if pair[1] not in musts.ids()) == []


def test_every_case_names_what_it_proves():
    assert [case.id for case in catalog() if not case.musts] == []


def test_every_feature_has_a_case_that_needs_it():
    assert set(Feature) == {feature for case in catalog() for feature in case.needs}


def test_every_group_has_cases_and_there_are_as_many_as_were_promised():
    by_group = {key: [c for c in catalog() if c.group == key] for key in GROUPS}
    assert len(catalog()) >= 370
    assert len(by_group["H"]) >= 60
    assert len(by_group["I"]) >= 35
    assert all(by_group.values())
