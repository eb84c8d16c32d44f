"""Names that nothing that ships uses, and why they are there; a rule of `tidy.py` reads them."""

from __future__ import annotations

# What nothing that ships uses yet, and why it is there: `room/module.py:name`. Whatever is used leaves this list.
RESERVED = {
    "kernel/space.py:CountedSpace": "the protocol by which readers know that nothing changed",
    "clock.py:ManualClock": "tests and simulations of those who build on Millpond",
    "spark/enrich.py:training_set": "who trains models on Spark, as millpond.spark.training_set",
    "airflow/__init__.py:get_provider_info": "the entry point of the provider",
    "airflow/operators.py:MillpondRunOperator": "DAGs",
    "airflow/sensors.py:MillpondSensor": "DAGs",
    # What a test, a benchmark or a tool calls instead of the many steps in which what ships does the same.
    "arrays/warming.py:spelled": "tools/kernels.py",
    "ranges/key_columns.py:hash_of_key": "the format's own definition, against which the kernels are tested",
    "stores/memory.py:MemorySpace": "millpond.testing.workflows",
}
