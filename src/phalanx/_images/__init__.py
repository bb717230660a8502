"""Images as workspaces: a project laid over an image, for schedulers that run containers.

| module | |
|---|---|
| `dockerignore` | pure: which paths a `.dockerignore` leaves out |
| `dockerfile` | pure: the Dockerfile, and the images that it stands on |
| `context` | the project's files: which, their digest, and the tar that is sent |
| `plan` | what is to be built (`plan_image`); asks no engine |
| `builder` | builds, if there is no such image yet, and pushes (`provide`) |
| `registry` | pushing, and whether an image is there already |
| `old_images` | removes those that nobody has used for long |
| `progress` | what is said meanwhile |
| `engine_errors` | an engine's errors as sentences |

A scheduler plans in `dryrun` and provides in `submit`:

    plan = plan_image(role.image, role.workspace, image_repo=options.image_repo)
    image = provide(plan, engine)        # engine: a `docker.APIClient`

No module here knows a scheduler. The `docker` package is imported by none but those that are
handed a client of it.
"""
