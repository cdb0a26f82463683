"""Cache formats.  `interface` says what a kind must offer and may, `table` holds all of them, each has a package.

What every kind shares lies beside them: `fs` opens files and follows no link, `listing` reads directories in bounds,
`images` reads compiled programs, `demangling` writes names for people, `removal` takes entries out, `trash` keeps them
under labels (`trash_labels`), `folders` handles entries that are directories, `driver_cache` leads the GPU driver to
its own cache.  `variables` is all that clients know of the kinds.
"""
