/* What the vendor's headers ask of the host's compiler: nothing here. */
