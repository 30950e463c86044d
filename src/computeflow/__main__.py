from computeflow.cli import main

main()
